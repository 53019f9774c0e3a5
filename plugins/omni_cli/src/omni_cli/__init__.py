"""The commands of omni: what a person types and reads.

Each command is a module here, registered in :mod:`omni_cli.plugin` and imported only when it is used. ``deploy`` reads deploy files,
``importing`` converts those of other systems, ``tracing`` records, ``live`` changes running pipelines.
"""

"""SGLang-Omni's pipeline configs: whole pipelines with a list of stages, and patches that map stages to settings.

``keys`` says where each setting goes; ``convert`` finds the stage and checks what belongs to the pipeline.
"""

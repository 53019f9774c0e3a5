"""``omni import``: configs of other systems become deploy files of omni, and no key is lost on the way.

``document`` reads a file with the line of every value, ``report`` says of each key if it was taken, noted or refused, and ``target``
is the pipeline here that the file becomes. Each system has a package: its ``keys`` are tables, its ``convert`` applies them.
"""

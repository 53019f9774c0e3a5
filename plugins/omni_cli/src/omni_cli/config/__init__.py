"""``omni config explain``, ``diff`` and ``init``: where values come from, in what configs differ, and a file to begin with."""

"""Stands in the way of a package of this name in the processes of a Ray cluster that ``negolab.cluster`` starts.

Every one of Ray's processes imports jsonschema, and jsonschema, where JupyterLab was installed, a grammar of
internationalised addresses: some three seconds of work, for a format that Ray does not use. With six such processes on
two processors a cluster may take longer than the fifteen seconds that Ray gives its own parts to start. jsonschema
goes on without the grammar.
"""

raise ImportError("not needed here, and slow to load")

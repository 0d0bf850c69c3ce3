"""One set of scenarios, run on the embedded cluster and on the real control plane: state in, steps, state out.

Each `*.yaml` here holds a list of scenarios of one theme; `model.py` names every key. Within a scenario `{n1}` stands
for the name that node n1 gets in the cluster and `{n1/0}` for the id of its card 0.

    python -m tests.scenarios                     # both worlds, table and differences
    python -m tests.scenarios --world sim --only spread
"""

"""Plans for training transformers on sequences of very different lengths.

    model = paradyse.Model.from_folder("meta-llama/Llama-3-8B")
    cluster = paradyse.Cluster.from_file("64xH100.toml")
    plan = paradyse.plan_batch(model, [512, 131072, 300], cluster)

Planning needs neither PyTorch nor a GPU.  The plans are those of the program `paradyse`.
"""

from ._plan import (
    BatchPlan,
    Cluster,
    Costs,
    DocumentPlan,
    Group,
    GroupCost,
    LayerCost,
    LayerMix,
    LayerRun,
    LayoutCost,
    LayoutPlan,
    MicroBatch,
    Model,
    NoPlan,
    Part,
    Plan,
    SimulatedMicroBatch,
    Simulation,
    bound,
    check,
    plan_batch,
    plan_document,
    plan_groups,
    plan_layers,
    plan_layout,
    plan_step,
    simulate,
)
from ._version import __version__

__all__ = [
    "BatchPlan",
    "Cluster",
    "Costs",
    "DocumentPlan",
    "Group",
    "GroupCost",
    "LayerCost",
    "LayerMix",
    "LayerRun",
    "LayoutCost",
    "LayoutPlan",
    "MicroBatch",
    "Model",
    "NoPlan",
    "Part",
    "Plan",
    "SimulatedMicroBatch",
    "Simulation",
    "__version__",
    "bound",
    "check",
    "plan_batch",
    "plan_document",
    "plan_groups",
    "plan_layers",
    "plan_layout",
    "plan_step",
    "simulate",
]

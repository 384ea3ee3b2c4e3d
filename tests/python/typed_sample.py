"""What a user writes with types: `mypy --strict` reads it (types_test.py)."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

import paradyse


def longest_group(plan: paradyse.Plan) -> int:
    return max(len(group.ranks) for micro_batch in plan.micro_batches for group in micro_batch.groups)


def seconds_of(model: paradyse.Model, lengths: list[int], cluster: paradyse.Cluster) -> float:
    plan = paradyse.plan_batch(model, lengths, cluster, memory="40GiB", group_sizes=[1, 2, 4, 8])
    tokens: npt.NDArray[np.int64] = plan.lengths
    programs: dict[str, list[paradyse.LayerRun]] = plan.programs
    assert int(tokens.sum()) == sum(lengths) and programs
    problems: list[str] = paradyse.check(plan, model, cluster=cluster)
    if problems:
        raise ValueError(problems[0])
    played = paradyse.simulate(plan, model, cluster)
    peaks: npt.NDArray[np.int64] = played.peak_bytes
    return played.seconds if plan.predicted_seconds is None else plan.predicted_seconds + float(peaks.max() * 0)


def bound_of(video: paradyse.Model, clips: list[dict[str, int]], cluster: paradyse.Cluster) -> float:
    return paradyse.plan_batch(video, clips, cluster).predicted_seconds or paradyse.bound(video, clips, cluster)[0]


def mix(capacity: int) -> list[tuple[str, int]]:
    candidates = [paradyse.LayerCost("fast", 1.0, 100), paradyse.LayerCost("small", 2.0, 10)]
    try:
        return list(paradyse.plan_layers(candidates, 4, capacity).order)
    except paradyse.NoPlan:
        return []


def main(folder: Path) -> None:
    model = paradyse.Model.from_folder(folder)
    cluster = paradyse.Cluster.from_file("64xH100.toml", ranks=8)
    print(seconds_of(model, [512, 300, 8192], cluster), mix(100), paradyse.__version__)

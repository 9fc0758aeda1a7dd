"""Owns the rules that tie keys of a plan together: the grid, exclusions, and settings that contradict.

Pure: values in, complaints out. What a single key may hold is the business of its type.
"""

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from orchestrator.plan.model import MAX_CELLS, PlanFile, Settings, Variant, grid
from orchestrator.plan.quantities import Share
from orchestrator.plan.yaml import KeyPath, shown

Complaint: TypeAlias = tuple[KeyPath, str]
_AXES = ("batches", "contexts", "variants")


@dataclass(frozen=True, slots=True)
class Drafted:
    """A plan as written, its resolved variants, and the paths of the keys (`bad`) that could not be read."""

    file: PlanFile
    variants: tuple[Variant, ...]
    bad: frozenset[KeyPath]

    def unread(self, *path: str | int) -> bool:
        """Whether the key, a part of it, or what it is part of, could not be read."""
        return any(key[: len(path)] == path or path[: len(key)] == key for key in self.bad)

    @property
    def size(self) -> int:
        """Cells before exclusion."""
        return len(self.file.contexts) * len(self.file.batches) * max(1, len(self.variants))


def complaints(draft: Drafted) -> list[Complaint]:
    """Everything wrong between keys, as far as the keys that it concerns could be read; each thing once."""
    found: list[Complaint] = [*_variant_names(draft), *_grid_size(draft), *_cooldown(draft), *_sentinel(draft)]
    if not found and not any(draft.unread(key) for key in (*_AXES, "exclude")):
        found += [*_exclusions(draft), *_unmatched_faults(draft)]
    found += _settings(draft)
    return list(dict.fromkeys(found))


def _variant_names(draft: Drafted) -> Iterator[Complaint]:
    seen: dict[str, int] = {}
    for at, variant in enumerate(draft.variants):
        # Folders are named by variants, and a Mac's file system takes KV8 for kv8.
        if seen.setdefault(variant.name.casefold(), at) != at:
            yield (
                ("variants", at, "name"),
                f"{variant.name} names another variant too (capitals do not count); give it its own",
            )


def _grid_size(draft: Drafted) -> Iterator[Complaint]:
    if not any(draft.unread(key) for key in _AXES) and draft.size > MAX_CELLS:
        sizes = [len(draft.variants)] if draft.variants else []
        product = " x ".join(str(n) for n in (*sizes, len(draft.file.contexts), len(draft.file.batches)))
        yield ("contexts",), f"the grid has {product} = {draft.size} cells; a plan has at most {MAX_CELLS}"


def _cooldown(draft: Drafted) -> Iterator[Complaint]:
    if not draft.unread("cooldown") and draft.file.cooldown.min_s > draft.file.cooldown.max_s:
        yield ("cooldown",), "min is longer than max; write min at most as long as max"


def _sentinel(draft: Drafted) -> Iterator[Complaint]:
    if draft.file.interleave and draft.file.sentinel is not None and not draft.unread("sentinel"):
        yield ("sentinel",), "interleave spreads every cell over the whole sweep already; leave one of the two out"


def _exclusions(draft: Drafted) -> Iterator[Complaint]:
    names = [variant.name for variant in draft.variants]
    axes: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("contexts", draft.file.contexts),
        ("batches", draft.file.batches),
        ("variants", tuple(names)),
    )
    strangers = False
    for at, rule in enumerate(draft.file.exclude):
        if not (rule.contexts or rule.batches or rule.variants):
            yield (
                ("exclude", at),
                "would leave out every cell; write contexts, batches or variants to leave out",
            )
            strangers = True
        for axis, known in axes:
            for index, value in enumerate(getattr(rule, axis)):
                if value not in known:
                    text = f"{shown(str(value))} is not among the plan's {axis}; leave it out, or mend it"
                    yield ("exclude", at, axis, index), text
                    strangers = True
    if not strangers and not grid(draft.variants, draft.file.contexts, draft.file.batches, draft.file.exclude):
        yield ("exclude",), "leaves no cell to run; exclude less"


def _unmatched_faults(draft: Drafted) -> Iterator[Complaint]:
    cells = grid(draft.variants, draft.file.contexts, draft.file.batches, draft.file.exclude)
    every: list[str] | None = None  # of the plan's own faults, which every variant without its own has
    for path, settings, own in _scopes(draft):
        where = path if path and "faults" in own else ()
        if not settings.faults or draft.unread(*where, "faults"):
            continue
        if where:
            names = [cell.cell_id for cell in cells if cell.variant == getattr(settings, "name", None)]
        else:
            names = every = [cell.cell_id for cell in cells] if every is None else every
        known = frozenset(names)
        for glob in settings.faults:
            pattern = glob.partition("#")[0]  # `#N` behind a glob means the N-th attempt (schedule.fault_for)
            if pattern not in known and not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                example = names[0] if names else "c00064-b001"
                yield (
                    (*where, "faults", glob),
                    f"matches no cell; write a cell id such as {example}, or a glob of one",
                )


def _scopes(draft: Drafted) -> Iterator[tuple[KeyPath, Settings, frozenset[str]]]:
    """Settings that cells use, with the path of their variant and the keys that the variant itself gives."""
    if not draft.variants and not draft.unread("variants"):
        yield (), draft.file, frozenset()
    for at, (variant, written) in enumerate(zip(draft.variants, draft.file.variants, strict=True)):
        yield ("variants", at), variant, frozenset(written.model_fields_set)


def _settings(draft: Drafted) -> Iterator[Complaint]:
    unused = [((), draft.file, frozenset[str]())] if draft.file.variants or draft.unread("variants") else []
    scopes = [(path, own, (*_thresholds(s), *_contradictions(s))) for path, s, own in _scopes(draft)]
    # Thresholds in the wrong order are a slip also where every variant has its own.
    scopes += [(path, own, tuple(_thresholds(s))) for path, s, own in unused]
    for path, own, wrongs in scopes:
        for keys, text in wrongs:
            if any(draft.unread(*key) or draft.unread(*path, *key) for key in keys):
                continue
            said = [key for key in keys if key[0] in own]
            yield ((*path, *said[0]) if said else keys[0]), text


def _contradictions(settings: Settings) -> Iterator[tuple[tuple[KeyPath, ...], str]]:
    """The keys involved, the one to complain about first, and what is wrong."""
    reps = settings.reps
    if not isinstance(reps, int) and reps.min > reps.max:
        yield (("reps",),), "min is over max; write min at most as large as max"
    if settings.prefill_logits == "all" and settings.engine != "lockstep":
        text = f"all needs engine: lockstep, and the engine is {settings.engine}; write last, or lockstep there"
        yield (("prefill_logits",), ("engine",)), text
    if settings.faults and settings.engine != "faulty":
        text = f"only engine: faulty plays faults, and the engine is {settings.engine}; leave faults out"
        yield (("faults",), ("engine",)), text
    kind = settings.model_ref.kind
    if settings.revision is not None and kind != "hub":
        yield (
            (("revision",), ("model",)),
            f"only a hub model has revisions, and this one is a {kind}; leave it out",
        )


def _thresholds(settings: Settings) -> Iterator[tuple[tuple[KeyPath, ...], str]]:
    dog = settings.watchdog
    swap = _out_of_order(dog.swap_growth.soft, dog.swap_growth.hard)
    if swap is not None:
        yield (("watchdog", "swap_growth"),), swap
    for name, soft, hard in (
        ("step_inflation", dog.step_inflation.soft, dog.step_inflation.hard),
        ("stall", dog.stall.soft_s, dog.stall.hard_s),
    ):
        if soft > hard:
            yield (("watchdog", name),), "soft is over hard; write soft at most as large as hard"


def _out_of_order(soft: Share, hard: Share) -> str | None:
    if (soft.frac is None) != (hard.frac is None):
        return f"soft is {soft} and hard is {hard}; write both as percentages, or both as sizes"
    if (soft.frac or soft.size_bytes or 0) > (hard.frac or hard.size_bytes or 0):
        return f"soft ({soft}) is over hard ({hard}); write soft at most as large as hard"
    return None

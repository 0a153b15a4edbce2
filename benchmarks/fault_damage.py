"""Damage to a stored file of a finished or an interrupted work."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from fault_processes import Child, Command, Failure, check_output, error_lines, run_to_end
from fault_trials import Trial, contents
from fault_victims import CACHE, PAGE, WORK

DAMAGES = ("cut", "emptied", "a bit flipped", "a block of zeros", "deleted")
ENDS = (0, 1, 2, 75)
SESSIONS = "env.json"
"""The record of sessions, which every session extends."""


def damage_a_file(trial: Trial) -> str:
    """Damage a file; a command then gives the same results, or an error that names it and changes nothing."""
    has_cache = any(path.name == CACHE for path in trial.victim.inputs)
    finished = not has_cache and trial.rng.random() < 0.5  # a finished training does not read its images
    if not finished:
        trial.setup()
        trial.interrupt()
    name = _choose_file(trial)
    if name is None or finished:
        finished = True
        shutil.rmtree(trial.folder, ignore_errors=True)
        shutil.copytree(trial.reference.folder, trial.folder, ignore=shutil.ignore_patterns(PAGE))
        name = _choose_file(trial)
    assert name is not None
    trial.happened = True
    content = (trial.folder / name).read_bytes()
    how = _damage(trial, trial.folder / name)
    trial.facts.append(f"{name} {how}, {'finished' if finished else 'interrupted'}")
    before = contents(trial.folder)
    readers = trial.read()
    if weights := _find_weights(name):
        readers += _evaluate(trial, *weights)
        if name.endswith(".safetensors") and _is_newest(trial.folder / name) and readers[-1].code == 0:
            raise Failure(f"{name} is damaged, and eval uses it")
    for child in readers:
        _check(child, name if finished else f"{WORK}/{name}")  # an interrupted work may not exist at all
    if finished:
        _check_pages(trial, readers)
    _check_unchanged(trial.folder, before, name)
    children = trial.run()
    for child in children:
        _check(child, name)
    if all(child.code == 0 for child in children) and not _remains_damaged(trial, name, before):
        trial.compare()
        return "identical"
    if any(child.code for child in children):
        _check_unchanged(trial.folder, before, name)
    elif not any(child.code for child in readers):
        raise Failure(f"{name} is damaged, and no command says so")
    (trial.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (trial.folder / name).write_bytes(content)
    trial.finish()
    return "clear error"


def _choose_file(trial: Trial) -> str | None:
    """Choose a file of the work or of its inputs; of the training on cached data, one of the cache."""
    if not trial.folder.exists():
        return None
    has_cache = (trial.folder / CACHE).exists()
    names = [name for name in contents(trial.folder) if name.startswith(CACHE if has_cache else "")]
    return trial.rng.choice(names) if names else None


def _damage(trial: Trial, file: Path) -> str:
    """Damage a file; return how."""
    data, how = bytearray(file.read_bytes()), trial.rng.choice(DAMAGES)
    if how == "deleted":
        file.unlink()
        return how
    if not data:
        file.write_bytes(b"\0")
        return "longer"
    place = trial.rng.randrange(len(data))
    if how == "cut":
        data, how = data[:place], f"cut to {place} of {len(data)} bytes"
    elif how == "emptied":
        data = bytearray()
    elif how == "a bit flipped":
        data[place] ^= 1 << trial.rng.randrange(8)
        how = f"with a bit of byte {place} flipped"
    else:
        data[place : place + 512] = bytes(len(data[place : place + 512]))
        how = f"with zeros from byte {place}"
    file.write_bytes(data)
    return how


def _find_weights(name: str) -> tuple[str, str] | None:
    """The run below `work` and its weights that a file holds or describes, as for `eval RUN --which NAME`."""
    path = Path(name)
    if (
        len(path.parts) < 4
        or path.parts[0] != WORK
        or path.parts[-3] != "weights"
        or path.parts[-2].startswith(".")
    ):
        return None
    stem = "global" if path.suffix == ".json" else path.stem
    return str(path.parents[2]), f"{stem}@{path.parts[-2].partition('-')[0]}"


def _is_newest(file: Path) -> bool:
    """Whether no weights of the same kind are newer; after a kill some may be, and `eval` uses those."""
    kind = file.parent.name.partition("-")[0]
    return file.parent == max(file.parents[1].glob(f"{kind}-*"))


def _evaluate(trial: Trial, run: str, which: str) -> list[Child]:
    """Evaluate weights of a run, outside of its folder."""
    words = ("eval", run, "--which", which, "--n", "4", "--attack", "pgd-2", "--workers", "1")
    out = ("--threat", "Linf:0.02", "--no-masking-check", "--force", "--out", str(trial.logs / "eval"))
    return run_to_end([Command((*words, *out), trial.folder)], trial.logs, "weights")


def _check(child: Child, name: str) -> None:
    """Raise Failure unless a command succeeds, or its error names the file or the folder that it is in."""
    check_output(child, ENDS)
    path = Path(name)
    known = {path.name, *(str(parent) for parent in path.parents if str(parent) != ".")}
    text = " ".join(error_lines(child))
    if child.code and not any(word in text for word in known):
        raise Failure(f"the error does not name {name}: {text}")


def _check_pages(trial: Trial, readers: Sequence[Child]) -> None:
    """Raise Failure if the page or the table of a finished work has changed without a warning."""
    if not (trial.reference.folder / PAGE).exists():
        for number, command in enumerate(trial.victim.readers(trial.reference.folder)):
            run_to_end([command], trial.reference.folder.parent, f"{trial.victim.name}-reader-{number}")
    for number, (command, child) in enumerate(zip(trial.victim.readers(trial.folder), readers, strict=False)):
        log = trial.reference.folder.parent / f"{trial.victim.name}-reader-{number}-0.log"
        intact = child.output() == log.read_text()
        if command.words[0] == "report":
            intact = (trial.folder / PAGE).read_bytes() == (trial.reference.folder / PAGE).read_bytes()
        if command.words[0] in ("report", "table") and child.code == 0 and not intact:
            warning = "warning" if command.words[0] == "report" else "missing"
            if warning not in child.output():
                raise Failure(f"another result without a warning: {' '.join(command.words)}")


def _check_unchanged(folder: Path, before: dict[str, bytes], name: str) -> None:
    """Raise Failure if a command that failed, or one that reads, changed a file."""
    after = contents(folder)
    for other in sorted({*before, *after} - {PAGE, name}):
        if before.get(other) != after.get(other) and Path(other).name != SESSIONS:
            raise Failure(f"{other} was changed, although the command only read or failed")


def _remains_damaged(trial: Trial, name: str, before: dict[str, bytes]) -> bool:
    """Whether a result is still damaged after the work has succeeded."""
    path = trial.folder / name
    is_result = any(key == name or key.endswith(f" {name}") for key in trial.reference.remains)
    return is_result and (not path.exists() or path.read_bytes() == before.get(name))

"""Teachers that a recipe does not have, or that are the learner itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from allrounder.config.fields import did_you_mean
from allrounder.recipe.budgets import Problem
from allrounder.recipe.mix import NO_DECAY, Mix
from allrounder.recipe.task import GLOBAL, Task


def teacher_problems(tasks: Sequence[Task], mix: Mix) -> Iterator[Problem]:
    """Yield the teachers that are no learner, or that are the learner as it is, not an average of it."""
    names = [task.name for task in tasks]
    for i, task in enumerate(tasks):
        for field, teacher in task.objective.teachers().items():
            place = ("task", i, "objective", field, "teacher")
            is_alone = teacher == GLOBAL and len(tasks) == 1 and mix.decay == NO_DECAY
            if teacher != GLOBAL and teacher not in names:
                known = f'there are: {", ".join(names)}, and "{GLOBAL}" for the global weights'
                hint = did_you_mean(teacher, [*names, GLOBAL])
                yield place, f'no learner is called "{teacher}" ({known}){hint}'
            elif (teacher == task.name or is_alone) and task.average is None:
                what = "is the learner itself, which can be taught only by its own average"
                hint = f'set average of the task "{task.name}", or name another teacher'
                yield place, f'"{teacher}" {what}; {hint}'

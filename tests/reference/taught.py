"""Slow reference of learners that teach: the added loss image by image, and the steps of a refresh."""

from __future__ import annotations

import math


def soften(z, temperature):
    """The softmax of one list of logits, each divided by a temperature."""
    exponentials = [math.exp(logit / temperature) for logit in z]
    return [value / sum(exponentials) for value in exponentials]


def soft_target_loss(teacher, student, temperature):
    """T^2 times the mean over images of sum_k p_k log(p_k / q_k): p of the teacher, q of the student."""
    total = 0.0
    for z_teacher, z_student in zip(teacher, student, strict=True):
        p, q = soften(z_teacher, temperature), soften(z_student, temperature)
        for p_k, q_k in zip(p, q, strict=True):
            total += p_k * math.log(p_k / q_k)
    return temperature**2 * total / len(teacher)


def taught_loss(base, ramp, lessons):
    """The base's loss, plus ramp times the weighted soft-target losses of all lessons."""
    added = 0.0
    for lesson in lessons:
        loss = soft_target_loss(lesson["teacher"], lesson["student"], lesson["temperature"])
        added += lesson["weight"] * loss
    return base + ramp * added


def refresh_step(t, period):
    """The step after which the weights were taken that a teacher has in step t; 0 for the initial ones."""
    newest = 0
    for step in range(1, t):
        if step % period == 0:
            newest = step
    return newest

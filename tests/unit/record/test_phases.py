"""Time left within a factor of two, shares that never go back, seconds by phase; a fake clock."""

import pytest

from siafu.record import Pace, PhaseTimes, Watch, brief, duration, shown_score


class FakeClock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class FakeLine:
    """Keeps what would be shown."""

    def __init__(self):
        self.shown = []

    def show(self, what, share, *, left, bound, note):
        self.shown.append((what, share, left))


def follow(clock, watch, run):
    """Live through a training; return (when, what was told to be left)."""
    told = []
    epochs, steps, scoring = run["epochs"], run["steps"], run["scoring"]
    eval_every = run.get("eval_every", 1)

    def note():
        told.append((clock.now, watch.pace.left()))

    for epoch in range(1, epochs + 1):
        with watch.training(epoch):
            for done in range(1, steps + 1):
                clock.now += run["step"]
                if steps > 1:
                    watch.step(done, steps)
                    note()
        if scoring and (epoch % eval_every == 0 or epoch == epochs):
            with watch.evaluating():
                clock.now += scoring
        watch.end_epoch("")
        note()
    with watch.writing():
        clock.now += run.get("writing", 0.0)
    return told


@pytest.mark.parametrize(
    "run",
    [
        {"epochs": 10, "steps": 1, "step": 2.0, "scoring": 1.0, "writing": 1.5},
        {"epochs": 10, "steps": 158, "step": 0.1, "scoring": 12.0, "writing": 14.0},
        {"epochs": 3, "steps": 20, "step": 1.0, "scoring": 6.0, "writing": 8.0},
        {"epochs": 100, "steps": 1, "step": 0.1, "scoring": 0.5, "eval_every": 10, "writing": 0.9},
        {"epochs": 30, "steps": 1, "step": 1.0, "scoring": 0.0},
    ],
)
def test_time_left_is_right_within_a_factor_of_two(run):
    clock, line = FakeClock(), FakeLine()
    every = run.get("eval_every", 1) if run["scoring"] else 0
    pace = Pace(run["epochs"], eval_every=every, writes=bool(run["scoring"]))
    watch = Watch(pace, line, clock=clock)
    told = follow(clock, watch, run)
    known = [(at, left) for at, left in told if left is not None]
    assert len(known) == len(told)
    for at, left in known:
        truth = clock.now - at
        assert truth / 2 - 1e-6 <= left <= 2 * truth + 1e-6, (at, left, truth)
    shares = [share for _, share, _ in line.shown]
    assert shares == sorted(shares)


def test_a_first_epoch_that_warms_up_is_forgotten():
    pace = Pace(100)
    for seconds in (50.0, 1.0, 1.0):
        pace.trained(seconds)
    assert pace.left() == pytest.approx(97.0)


def test_a_machine_that_becomes_busy_is_noticed():
    pace = Pace(100)
    for seconds in [1.0] * 20 + [4.0] * 8:
        pace.trained(seconds)
    assert pace.left() == pytest.approx(72 * 4.0)


def test_nothing_is_told_before_anything_is_known():
    pace = Pace(10, eval_every=1, writes=True)
    assert pace.left() is None
    pace.step(1, 4, 2.0)
    # a step of four took 2 s: an epoch 8 s, an evaluation is guessed
    assert pace.left() == pytest.approx(9.75 * 8 + 11 * 0.4 * 8)


@pytest.mark.parametrize(("done", "every", "count"), [(0, 3, 4), (3, 3, 3), (9, 3, 1), (9, 1, 1)])
def test_evaluations_to_come_are_counted(done, every, count):
    pace = Pace(10, done=done, eval_every=every)
    pace.step(1, 1, 0.0)
    pace.scored(1.0)
    assert pace.left() == pytest.approx(count)


def test_the_share_is_that_of_epochs_whatever_came_before_them():
    clock, line = FakeClock(), FakeLine()
    watch = Watch(Pace(100, done=50), line, clock=clock)
    clock.now += 1000.0  # loading
    with watch.training(51):
        watch.compiling(True)
        clock.now += 40.0
        watch.compiling(False)
        clock.now += 1.0
    watch.end_epoch("")
    assert line.shown[-1][1:] == (pytest.approx(0.51), pytest.approx(49.0))


def test_phases_are_named_with_steps_and_compilation():
    clock, line = FakeClock(), FakeLine()
    watch = Watch(Pace(2, eval_every=1, writes=True), line, low=0.2, clock=clock)
    with watch.training(1):
        watch.compiling(True)
        clock.now += 40.0
        watch.compiling(False)
        clock.now += 2.0
        watch.step(41, 158)
    with watch.evaluating():
        clock.now += 1.0
    watch.end_epoch("loss 0.5")
    with watch.writing():
        clock.now += 0.5
    assert [what for what, _, _ in line.shown] == [
        "epoch 1 of 2",
        "compiling kernels, once",
        "epoch 1 of 2",
        "epoch 1 of 2, step 41 of 158",
        "evaluating",
        "epoch 1 of 2",
        "writing predictions",
    ]
    assert watch.times.seconds == {
        "training": 2.0,
        "compiling kernels": 40.0,
        "evaluating": 1.0,
        "writing predictions": 0.5,
    }
    assert line.shown[0][1] == 0.2
    # what was compiled once is not expected again
    assert line.shown[-2][2] == pytest.approx(2.0 + 1.0 + 1.0)


def test_a_phase_inside_another_counts_once():
    clock = FakeClock()
    times = PhaseTimes(clock)
    with times.phase("outer"):
        clock.now += 1
        with times.phase("inner"):
            clock.now += 5
        clock.now += 2
    clock.now += 100
    assert times.seconds == {"outer": 3.0, "inner": 5.0}


def test_durations_and_scores_in_words():
    assert duration(3725.9) == "1:02:05"
    told = [brief(seconds) for seconds in (0.034, 12.4, 65.0, 7500.0)]
    assert told == ["0.03 s", "12 s", "1 min 5 s", "2 h 5 min"]
    assert shown_score("accuracy", 0.9123) == "91.23 %"
    assert shown_score("RMSE", 12.34567) == "12.3457"

"""Check the figures of a listener, from arrivals that are chosen so that each figure is exact."""

from __future__ import annotations

from omni_serve.bench.timeline import Timeline


def test_sound_that_arrives_in_time_has_no_pause() -> None:
    # 1 s arrives at 10.5, plays until 11.5; 0.5 s more at 11.5 (just in time), until 12; the last early.
    timeline = Timeline("speech", 10.0, sounds=[(10.5, 1.0), (11.5, 0.5), (11.75, 0.25)], ended=11.75)
    assert timeline.ttfa == 0.5
    assert timeline.silences == []
    assert (timeline.late, timeline.gap) == (0.0, 0.0)
    assert timeline.sound == 1.75
    assert timeline.rtf == 1.0


def test_pauses_move_all_that_follows() -> None:
    # 0.25 s at 1 plays until 1.25. Nothing until 2: a pause of 0.75, then until 2.5. At 2.25 comes 0.25 more: until 2.75.
    # Nothing until 3: a pause of 0.25.
    timeline = Timeline("speech", 0.0, sounds=[(1.0, 0.25), (2.0, 0.5), (2.25, 0.25), (3.0, 1.0)], ended=3.0)
    assert timeline.silences == [0.75, 0.25]
    assert timeline.late == 1.0
    assert timeline.gap == 0.75
    assert timeline.rtf == 1.5


def test_a_burst_after_a_pause_does_not_take_it_back() -> None:
    timeline = Timeline("speech", 0.0, sounds=[(0.0, 0.5), (1.0, 5.0), (1.0, 5.0)])
    assert timeline.silences == [0.5]
    assert timeline.rtf is None


def test_an_answer_without_sound_has_no_measures_of_it() -> None:
    timeline = Timeline("chat", 1.0, ended=2.25)
    assert (timeline.ttfa, timeline.gap, timeline.late, timeline.rtf) == (None, None, None, None)
    assert timeline.as_data(0.5) == {
        **{"scenario": "chat", "error": None, "tokens": None, "begun": 0.5, "total": 1.25, "sound": 0},
        **dict.fromkeys(("ttfa", "gap", "late", "rtf")),
    }

"""Which method an oracle would ask for each group of queries."""

from evidence.router import route

RANKS = {"scalar": [1, 2, 1, 1, 3, 9], "gram": [2, 1, 1, 4, 1, 1], "max": [1, 1, 5, 1, 1, 1]}


def test_each_group_gets_the_method_that_finds_most_of_it_first():
    groups = [("single", "video"), ("single", "video"), "shared", "shared", "mixed", "mixed"]
    chosen, of_test = route(RANKS, groups, ["mixed", ("single", "video"), "shared", "unseen", "mixed"])
    # of video two of two; of what is shared scalar has two; of mixed gram and max have two, and gram is the earlier
    assert chosen == {("single", "video"): "max", "shared": "scalar", "mixed": "gram", "unseen": "max"}
    assert of_test == ["gram", "max", "scalar", "max", "gram"]


def test_of_equally_good_methods_the_earlier_is_taken_and_only_first_places_count():
    chosen, _ = route({"a": [2, 2], "b": [100, 1], "c": [1, 100]}, ["x", "x"], [])
    assert chosen == {"x": "b"}
    assert route({"a": [7], "b": [2]}, ["x"], ["y"]) == ({"x": "a", "y": "a"}, ["a"])

"""What a request has before it in the queue."""

from ballast.engine.waiting_line import Ahead, WaitingLine


def line_of(*waiting):
    line = WaitingLine()
    for priority, client, num_tokens in waiting:
        line.join(priority, client, num_tokens)
    return line


def test_one_client_waits_for_all_that_it_has_asked_before():
    line = line_of((0, 1, 10), (0, 1, 20), (0, 1, 30))
    assert line.ahead(0, 1) == Ahead(3, 60)
    assert line_of().ahead(0, 1) == Ahead(0, 0)


def test_of_other_clients_as_many_turns_are_ahead_as_a_client_takes_itself():
    line = line_of(*[(0, 1, 10)] * 8, (0, 2, 100))
    assert line.ahead(0, 3) == Ahead(2, 110)
    assert line.ahead(0, 2) == Ahead(1 + 2, 100 + 20)
    assert line.ahead(0, 1) == Ahead(9, 180)


def test_more_urgent_priorities_are_ahead_as_a_whole_and_others_not_at_all():
    line = line_of(*[(-1, 1, 10)] * 3, (1, 1, 10), (0, 2, 5))
    assert line.ahead(0, 3) == Ahead(4, 35)
    assert line.ahead(-2, 3) == Ahead(0, 0)


def test_nothing_is_kept_of_a_client_that_waits_no_longer():
    line = line_of((0, 1, 10), (0, 1, 20), (0, 2, 30))
    line.leave(0, 1, 20)
    line.leave(0, 2, 30)
    assert (line.num_clients, line.num_tokens, line.ahead(0, 2)) == (1, 10, Ahead(1, 10))
    line.leave(0, 1, 10)
    assert (line.num_clients, line.num_tokens) == (0, 0)

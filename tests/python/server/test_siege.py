"""The short form of siege.py: times are printed there and judged by who runs it."""

from siege import siege


def test_a_server_under_siege_answers(tmp_path):
    figures = siege(tmp_path, seconds=10)
    print(figures)
    assert figures.queries

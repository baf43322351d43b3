"""Examples by hypothesis, which is imported on demand: a plain `pytest` does not need it."""


def check_examples(check, n, **settings):
    """Run check(draw, st) on n examples, the same ones each time. draw takes a strategy of st."""
    import hypothesis
    from hypothesis import strategies as st

    settings = {"deadline": None, "derandomize": True, "database": None, **settings}

    @hypothesis.settings(max_examples=n, suppress_health_check=list(hypothesis.HealthCheck), **settings)
    @hypothesis.given(st.data())
    def check_one(data):
        check(data.draw, st)

    check_one()

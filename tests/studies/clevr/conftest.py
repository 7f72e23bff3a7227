from study_fixtures import call, detector, minute, reproduce  # noqa: F401

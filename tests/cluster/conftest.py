from study_fixtures import call  # noqa: F401

from tests.trainer.conftest import tiny_run  # noqa: F401

"""What every test may use: the servers of tests/servers, started on first use."""

pytest_plugins = ["tests.servers.fixtures"]

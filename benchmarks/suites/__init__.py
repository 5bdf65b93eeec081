"""Other projects' tests with their `lax.scan` as `rs.scan`, for `make test-suites`.

It installs and fetches nothing. A first run counts the calls of `lax.scan` in each test. The tests that scan and pass
then run with each call replaced.
"""

"""Run the cases of the suite in runtimes, each in a separate process."""

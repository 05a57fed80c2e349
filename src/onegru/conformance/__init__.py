"""The conformance kit: cases for both specifications, what is right in each, and how runtimes do."""

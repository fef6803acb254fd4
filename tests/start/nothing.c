/* A library without anything: what it costs to preload one. */
int nothing_at_all(void) { return 1; }

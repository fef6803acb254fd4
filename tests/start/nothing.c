/* An empty library: the cost of preloading any. */
int nothing_at_all(void) { return 1; }

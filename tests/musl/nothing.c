/* Neither allocates nor forks: what it has is its loader's. */
int main(void) { return 0; }

/* A library that needs a plugin: a program opens this one, and so loads that one. */
#include <stddef.h>

const unsigned char *task(size_t count);
const unsigned char *(*by_another(void))(size_t);
const unsigned char *(*by_another(void))(size_t) { return task; }

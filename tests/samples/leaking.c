/* A module of Python that keeps a copy of each text that it is given, as a cache that is never emptied. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>
#include <string.h>

static struct kept {
    struct kept *next;
    char text[];
} *all;

__attribute__((noinline)) static int leaky_keep(const char *text, Py_ssize_t length) {
    struct kept *one = malloc(sizeof *one + length + 1);
    if (!one) return 0;
    memcpy(one->text, text, length + 1);
    one->next = all;
    all = one;
    return 1;
}

static PyObject *keep(PyObject *module, PyObject *arguments) {
    (void)module;
    const char *text;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(arguments, "s#", &text, &length)) return NULL;
    if (!leaky_keep(text, length)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"keep", keep, METH_VARARGS, "Keeps a text."}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "leaking", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_leaking(void) { return PyModule_Create(&module); }

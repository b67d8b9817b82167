/* A quick way into a method that is called for every record.

   Cython's own way in takes a reference to each argument and makes a table of the parameters' names, at every call.
   That costs more than encoding a record does. The quick way takes neither: like the functions of CPython itself,
   it trusts its caller to hold the arguments until the call returns. Whatever the quick way does not understand (a
   missing argument, an unknown name) goes Cython's way, which raises the error. */

#ifndef KAFKABUF_ARGUMENTS_H
#define KAFKABUF_ARGUMENTS_H

#include <Python.h>

#define KB_MOST_PARAMETERS 10

/* The C type of a method that takes a vector of arguments; CPython's own has `const` before its second star. */
typedef PyObject *(*kb_method)(PyObject *self, PyObject **given, Py_ssize_t count, PyObject *names);

typedef struct {
    PyObject *parameters[KB_MOST_PARAMETERS]; /* interned names */
    kb_method by_cython;                      /* the way in that Cython has made */
} kb_quick;

/* Put the arguments of a vectorcall in the order of the parameters; None stands for an argument that is not given. The
   first parameter is required. Returns 0 if the call needs Cython's way. All references are borrowed. `room` is the
   number of parameters, as a constant. */
static inline int kb_arrange(const kb_quick *quick, Py_ssize_t room, PyObject **given, Py_ssize_t count,
                             PyObject *names, PyObject **arguments)
{
    Py_ssize_t i, place;
    if (count < 1 || count > room)
        return 0;
    for (i = 0; i < room; i++)
        arguments[i] = i < count ? given[i] : Py_None;
    if (names == NULL)
        return 1;
    for (i = 0; i < PyTuple_GET_SIZE(names); i++) {
        /* A name in a call's source is interned. A key of a dict that is unpacked may not be. */
        PyObject *name = PyTuple_GET_ITEM(names, i);
        for (place = count; place < room && quick->parameters[place] != name; place++)
            ;
        if (place == room)
            return 0;
        arguments[place] = given[count + i];
    }
    return 1;
}

/* Make `way_in` the way into a method of an extension type. The method keeps its name, docstring and signature. */
static int kb_replace_way_in(kb_quick *quick, PyObject *type, const char *name, PyObject *parameters, kb_method way_in)
{
    PyObject *method = PyDict_GetItemString(((PyTypeObject *)type)->tp_dict, name);
    PyMethodDef *definition;
    if (method == NULL || !Py_IS_TYPE(method, &PyMethodDescr_Type)) {
        PyErr_Format(PyExc_SystemError, "%.200s is not a method of an extension type", name);
        return -1;
    }
    definition = ((PyMethodDescrObject *)method)->d_method;
    if (definition->ml_flags != (METH_FASTCALL | METH_KEYWORDS) || PyTuple_GET_SIZE(parameters) > KB_MOST_PARAMETERS) {
        PyErr_Format(PyExc_SystemError, "%.200s does not take so many arguments as a vector with names", name);
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parameters); i++) {
        quick->parameters[i] = Py_NewRef(PyTuple_GET_ITEM(parameters, i));
        PyUnicode_InternInPlace(&quick->parameters[i]);
    }
    quick->by_cython = (kb_method)(void (*)(void))definition->ml_meth;
    definition->ml_meth = (PyCFunction)(void (*)(void))way_in;
    return 0;
}

#define kb_apply8(function, self, a) function(self, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7])

#endif

/* A quick way into a method that is called for every record.

   Cython's own way in takes a reference to each argument and makes a table of the parameters' names, at every call.
   That costs more than encoding a record does. The quick way takes neither: like the functions of CPython itself,
   it trusts its caller to hold the arguments until the call returns. Whatever the quick way does not understand (a
   missing argument, an unknown name) goes Cython's way, which raises the error.

   Both ways cut the traceback of an error that is raised on purpose: Cython adds a frame for each function that the error
   passes, and the user looks for the line of the call. An error that is not raised on purpose keeps its frames, and so
   does an error that code of the user's has passed. */

#ifndef KAFKABUF_ARGUMENTS_H
#define KAFKABUF_ARGUMENTS_H

#include <Python.h>
#include <frameobject.h>
#include <string.h>

#define KB_MOST_PARAMETERS 10

/* The C type of a method that takes a vector of arguments; CPython's own has `const` before its second star. */
typedef PyObject *(*kb_method)(PyObject *self, PyObject **given, Py_ssize_t count, PyObject *names);

static PyObject *kb_deliberate; /* the class of the errors that are raised on purpose */
static PyObject *kb_module_key; /* "__name__" */

/* Whether code of kafkabuf runs in all frames of a traceback. Allocates nothing, and leaves no error behind. */
static int kb_all_ours(PyObject *traceback)
{
    static const char prefix[] = "kafkabuf.";
    PyTracebackObject *entry;
    for (entry = (PyTracebackObject *)traceback; entry != NULL; entry = entry->tb_next) {
        PyObject *globals = PyFrame_GetGlobals(entry->tb_frame);
        PyObject *module = PyDict_GetItemWithError(globals, kb_module_key);
        int ours = module != NULL && PyUnicode_Check(module) && PyUnicode_IS_COMPACT_ASCII(module) &&
                   strncmp(PyUnicode_DATA(module), prefix, sizeof(prefix) - 1) == 0;
        Py_DECREF(globals);
        if (!ours) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

/* Cut the traceback of the error that is set, as the comment above says. Returns NULL. */
static Py_NO_INLINE PyObject *kb_cut_traceback(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *error = PyErr_GetRaisedException();
    PyObject *traceback = PyException_GetTraceback(error);
    if (traceback != NULL && PyObject_TypeCheck(error, (PyTypeObject *)kb_deliberate) && kb_all_ours(traceback))
        PyException_SetTraceback(error, Py_None);
    Py_XDECREF(traceback);
    PyErr_SetRaisedException(error);
#else
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    if (traceback != NULL && PyType_IsSubtype((PyTypeObject *)type, (PyTypeObject *)kb_deliberate) &&
        kb_all_ours(traceback))
        Py_CLEAR(traceback);
    PyErr_Restore(type, error, traceback);
#endif
    return NULL;
}

static inline PyObject *kb_or_cut(PyObject *result)
{
    return result != NULL ? result : kb_cut_traceback();
}

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

/* Make `way_in` the way into a method of an extension type. The method keeps its name, docstring and signature. Errors of
   the class `deliberate` are raised on purpose. */
static int kb_replace_way_in(kb_quick *quick, PyObject *type, const char *name, PyObject *parameters, kb_method way_in,
                             PyObject *deliberate)
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
    kb_module_key = PyUnicode_InternFromString("__name__");
    if (kb_module_key == NULL)
        return -1;
    kb_deliberate = Py_NewRef(deliberate);
    quick->by_cython = (kb_method)(void (*)(void))definition->ml_meth;
    definition->ml_meth = (PyCFunction)(void (*)(void))way_in;
    return 0;
}

static inline PyObject *kb_by_cython(const kb_quick *quick, PyObject *self, PyObject **given, Py_ssize_t count,
                                     PyObject *names)
{
    return kb_or_cut(quick->by_cython(self, given, count, names));
}

#define kb_apply8(function, self, a) kb_or_cut(function(self, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]))

#endif

# cython: language_level=3
"""Extension types that nobody makes but us: an object without what its methods rely on would end the process."""


cdef extern from *:
    """
    static int kb_refuse_init(PyObject *self, PyObject *args, PyObject *keywords) {
        PyErr_Format(PyExc_TypeError, "nobody makes a %.200s but kafkabuf itself", Py_TYPE(self)->tp_name);
        (void)args;
        (void)keywords;
        return -1;
    }

    /* Our own code goes by the slot tp_new alone. A call of the type comes to its __init__, and `type.__new__(type)` is
       looked up here: without it Python finds object.__new__, which refuses. */
    static int kb_seal(PyObject *object) {
        PyTypeObject *type = (PyTypeObject *)object;
        if (type->tp_init == PyBaseObject_Type.tp_init) type->tp_init = kb_refuse_init;
        if (PyDict_DelItemString(type->tp_dict, "__new__") < 0) return -1;
        PyType_Modified(type);
        return 0;
    }
    """
    # Once, when the type's module is imported. Raises KeyError where it has been done.
    int seal "kb_seal"(object type) except -1

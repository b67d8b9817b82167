# cython: language_level=3
"""Extension types that nobody makes but us: an object without what its methods rely on would end the process."""


cdef extern from *:
    """
    /* `type.__new__(type)` is looked up here; without it Python finds object.__new__, which refuses. Our own code goes
       by the slot tp_new, and so does a call of the type, which __init__ has to refuse. */
    static int kb_seal(PyObject *type) {
        int failed = PyDict_DelItemString(((PyTypeObject *)type)->tp_dict, "__new__");
        PyType_Modified((PyTypeObject *)type);
        return failed;
    }
    """
    # Once, when the type's module is imported. Raises KeyError where it has been done.
    int seal "kb_seal"(object type) except -1

# cython: language_level=3
"""Sealed extension types: only kafkabuf creates their objects, since methods of an unprepared object crash Python."""


cdef extern from *:
    """
    static int kb_refuse_init(PyObject *self, PyObject *args, PyObject *keywords) {
        PyErr_Format(PyExc_TypeError, "only kafkabuf itself can create a %.200s", Py_TYPE(self)->tp_name);
        (void)args;
        (void)keywords;
        return -1;
    }

    /* kafkabuf's own code calls the slot tp_new directly. A call of the type reaches tp_init, which refuses; Cython's
       tp_vectorcall would go around it. Python looks `type.__new__(type)` up in tp_dict: without the entry it finds
       object.__new__, which refuses too. */
    static int kb_seal(PyObject *object) {
        PyTypeObject *type = (PyTypeObject *)object;
        if (type->tp_init == PyBaseObject_Type.tp_init) type->tp_init = kb_refuse_init;
        type->tp_vectorcall = NULL;
        if (PyDict_DelItemString(type->tp_dict, "__new__") < 0) return -1;
        PyType_Modified(type);
        return 0;
    }
    """
    # Call it once, when the type's module is imported. Raises KeyError the second time.
    int seal "kb_seal"(object type) except -1

# cython: language_level=3
"""Advice for calls that another client's futures and producers have: they are errors here, and say what to use."""


cdef extern from *:
    """
    static inline PyObject *kb_cannot_await(PyObject *self) {
        const char *wait = PyObject_HasAttrString((PyObject *)Py_TYPE(self), "result") ? "result" : "get";
        return PyErr_Format(PyExc_TypeError,
            "a %.100s cannot be awaited: in an event loop use kafkabuf.aio.AIOKafkaProducer, whose send() is awaited; "
            "or wait for the outcome with %s()", strrchr(Py_TYPE(self)->tp_name, '.') + 1, wait);
    }

    /* The slot alone, without a method __await__: for isinstance(future, Awaitable) and inspect.isawaitable() the type
       stays as it is. */
    static PyAsyncMethods kb_not_awaitable = {.am_await = kb_cannot_await};

    static inline void kb_refuse_await(PyObject *type) { ((PyTypeObject *)type)->tp_as_async = &kb_not_awaitable; }

    static inline int kb_put_hint(PyObject *object, PyObject *name, PyObject *hint) {
        PyTypeObject *type = (PyTypeObject *)object;
        if (PyDict_SetItem(type->tp_dict, name, hint) < 0) return -1;
        PyType_Modified(type);
        return 0;
    }
    """
    # Call both once, when the type's module is imported.
    void refuse_await "kb_refuse_await"(object type) noexcept
    int put_hint "kb_put_hint"(object type, object name, object hint) except -1

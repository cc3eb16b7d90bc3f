/* A variant of the micro-kernels refuses to be imported where it cannot run.

   kuiper asks the processor before it chooses one; tools that import all modules of a package do not.
   Already the start of a module would be an illegal instruction there, so it is asked for once more,
   as the first thing that the module does. */
#ifndef KUIPER_VARIANT_H
#define KUIPER_VARIANT_H

#include <Python.h>

#include "cpu.h"

#if defined(__AVX512F__)
#define KP_MAY_RUN kp_cpu_has_avx512()
#elif defined(__AVX2__)
#define KP_MAY_RUN kp_cpu_has_avx2()
#else
#define KP_MAY_RUN 1
#endif

static inline PyObject *kp_module_init(PyModuleDef *module) {
    if (!KP_MAY_RUN) {
        PyErr_Format(PyExc_ImportError, "%s: this processor lacks the instructions", module->m_name);
        return NULL;
    }
    return PyModuleDef_Init(module);
}

/* What Cython has the module begin with. */
#define PyModuleDef_Init(module) kp_module_init(module)

#endif

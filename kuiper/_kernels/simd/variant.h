/* Makes the import of a variant fail on a processor that cannot run it.

   kuiper imports supported variants only, but tools import all modules of a package, and even the
   start of the module could be an illegal instruction.  So the module's first action is this check. */
#ifndef KUIPER_VARIANT_H
#define KUIPER_VARIANT_H

#include <Python.h>

#include "cpu.h"

#if defined(__AMX_TILE__)
#define KP_MAY_RUN kp_cpu_has_amx()
#elif defined(__AVX512BF16__)
#define KP_MAY_RUN kp_cpu_runs_avx512_bf16()
#elif defined(__AVX512VNNI__)
#define KP_MAY_RUN kp_cpu_has_avx512_vnni()
#elif defined(__AVX512F__)
#define KP_MAY_RUN kp_cpu_has_avx512()
#elif defined(__AVXVNNI__)
#define KP_MAY_RUN kp_cpu_has_avx_vnni()
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

/* The first call in the module that Cython generates. */
#define PyModuleDef_Init(module) kp_module_init(module)

#endif

# Tests that cover every kernel, on this CPU and on CPUs emulated by QEMU (tools/older-cpus.sh). QEMU does not run
# AddressSanitizer, and compiling the kernels takes minutes, so they belong to the extension's build.
# test_sampling samples without kernels of an instruction set, so the oldest CPU covers it.
set(kernel_tests test_formats test_ops test_panels test_model test_split_experts)
set(plain_tests test_sampling)
set(attention tests/kernels/attention/test_attention.py)
set(python_kernel_tests tests/kernels/test_elementwise.py ${attention}::test_odd_widths_and_heads
    ${attention}::test_the_true_latent_sizes ${attention}::test_scores_far_beyond_exp_do_not_overflow)
add_custom_target(kernel_tests DEPENDS ${kernel_tests} ${plain_tests})
set(on_this_cpu ${kernel_tests} ${plain_tests})
if(TARGET test_amx)
  list(APPEND on_this_cpu test_amx)
  add_dependencies(kernel_tests test_amx)
endif()
set_tests_properties(${on_this_cpu} PROPERTIES LABELS kernels)

set(BALLAST_QEMU "" CACHE FILEPATH "qemu-x86_64, to run tests on older CPUs")
if(NOT BALLAST_QEMU)
  return()
endif()

# `isas`: the instruction sets that Ballast must find usable on this CPU; further arguments: tests for this CPU alone.
function(ballast_older_cpu cpu isas)
  set(python ${BALLAST_QEMU} -cpu ${cpu} ${Python3_EXECUTABLE})
  # --confcutdir: tests/conftest.py starts servers, as programs that QEMU does not emulate. Plugins that these tests do
  # not use take longer to import than the tests.
  set(unused)
  foreach(plugin IN ITEMS cacheprovider schemathesis hypothesispytest xdist xdist.looponfail anyio)
    list(APPEND unused -p no:${plugin})
  endforeach()
  add_test(NAME ${cpu}_python COMMAND ${python} -m pytest --quiet --confcutdir=tests/kernels ${unused} ${python_kernel_tests}
           WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/../..)
  add_test(NAME ${cpu}_isas COMMAND ${python} -c "from ballast._core import kernels; print('usable:', *kernels.usable_isas())")
  set_tests_properties(${cpu}_isas PROPERTIES PASS_REGULAR_EXPRESSION "usable: ${isas}\n")
  set(names ${cpu}_python ${cpu}_isas)
  foreach(name IN LISTS kernel_tests ARGN)
    add_test(NAME ${cpu}_${name} COMMAND ${BALLAST_QEMU} -cpu ${cpu} $<TARGET_FILE:${name}>)
    list(APPEND names ${cpu}_${name})
  endforeach()
  set_tests_properties(${names} PROPERTIES LABELS older_cpus TIMEOUT 600)
endfunction()

ballast_older_cpu(Haswell "avx2 reference")  # AVX2, and no AVX-512
ballast_older_cpu(Nehalem "reference" ${plain_tests})  # neither AVX2 nor AVX

# HiGHS as checks and tests build it: in fewer, larger units and without optimisations, which takes a bit more than a minute
# of processor time instead of four. The programs of tests are small, and solved fast enough.
set(CMAKE_CXX_FLAGS_RELEASE "-O0 -DNDEBUG" CACHE STRING "")
set(CMAKE_C_FLAGS_RELEASE "-O0 -DNDEBUG" CACHE STRING "")
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)

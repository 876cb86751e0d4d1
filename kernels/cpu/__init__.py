"""Native CPU kernels: a plain C++ library behind ctypes, absent where nothing compiled it."""

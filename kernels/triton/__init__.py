"""Triton kernels: one file an operation, its entry function on torch tensors and its Launches.

Owns: nothing beyond the files. Must not know: layers, requests. Importing a file needs the triton
package; with TRITON_INTERPRET=1 set before that import every kernel runs on CPU tensors.
"""

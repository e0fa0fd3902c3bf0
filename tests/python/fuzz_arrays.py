# SPDX-License-Identifier: Apache-2.0
"""Arrays for fuzz.py: random values in every library, with strides of all kinds."""

import importlib

import numpy as np
from scanrnn import arguments
from support import DEVICE


class Arrays:
    """Gives a case its arrays, and takes what comes out back to NumPy."""

    def __init__(self, case, dtype=None):
        self.case = case
        self.random = np.random.default_rng([2, case.seed])
        self.dtype = np.dtype(dtype) if dtype else arguments.dtype(case.options["dtype"])
        self.wide = np.complex128 if self.dtype.kind == "c" else np.float64
        self.given = []

    def values(self, *shape, scale=1.0):
        """Random numbers that the dtype can hold, in float64; now and then the same along axes."""
        for axis in range(len(shape) if self.random.random() < 0.15 else 0):
            if self.random.random() < 0.5 and shape[axis]:
                once = self.values(*shape[:axis], 1, *shape[axis + 1 :], scale=scale)
                return np.broadcast_to(once, shape)
        found = self.random.uniform(-1.5, 1.5, shape) * scale
        if self.dtype.kind == "c":
            found = found * np.exp(1j * self.random.uniform(0, 2 * np.pi, shape))
        return self.rounded(found)

    def rounded(self, values):
        return np.asarray(values).astype(self.dtype).astype(self.wide)

    def give(self, values):
        """An array of the case's library and dtype with these values, in some kind of memory."""
        array = values if values.dtype == bool else values.astype(self.dtype)
        if self.case.library == "jax" or self.random.random() < 0.4:
            out = self.of_library(array)
        else:
            out = self.view(array)
        if self.case.library == "numpy":
            self.given.append((out, out.copy()))
        return out

    def view(self, array):
        """Axes in another order, with gaps, or backwards; an axis along which all is equal once."""
        shape, random, library = array.shape, self.random, self.case.library
        once = array
        for axis, size in enumerate(shape):
            first = once.take([0], axis) if size > 1 else once
            if size > 1 and (once == first).all():
                once = first
        order = random.permutation(array.ndim)
        signs = (1, 2, -1, -2) if library == "numpy" else (1, 1, 2)  # nobody else has them
        part = tuple(
            slice(int(skip) if sign > 0 else None, None, sign)
            for sign, skip in zip(
                random.choice(signs, array.ndim), random.integers(0, 2, array.ndim), strict=True
            )
        )
        sizes = [
            once.shape[axis] * abs(cut.step) + (cut.start or 0)
            for axis, cut in zip(order, part, strict=True)
        ]
        memory = np.zeros(sizes, array.dtype)
        memory[part] = once.transpose(order)
        axes = tuple(int(axis) for axis in np.argsort(order))
        held = self.of_library(memory)
        if library == "torch":
            return held[part].permute(axes).expand(shape)
        out = held[part].transpose(axes)
        if library == "cupy":
            return importlib.import_module("cupy").broadcast_to(out, shape)
        return np.broadcast_to(out, shape)

    def of_library(self, array):
        """A contiguous one."""
        name = self.case.library
        if name == "numpy":
            return array
        library = importlib.import_module(name)
        if name == "torch":
            if array.dtype.kind in "bi":
                return library.from_numpy(np.array(array)).to(DEVICE)
            wide = library.from_numpy(np.array(array, self.wide))
            return wide.to(getattr(library, str(self.dtype))).to(DEVICE)
        return library.asarray(array) if name == "cupy" else library.numpy.asarray(array)

    def take(self, array):
        """As float64 or complex128 on the host, once its library and dtype are right."""
        name = type(array).__module__.partition(".")[0]
        assert name in (self.case.library, "jaxlib"), f"an array of {name} came out"
        assert str(array.dtype).removeprefix("torch.") == str(self.dtype)
        if name == "torch":
            array = array.detach().to("cpu")
            return (array if array.is_complex() else array.double()).numpy().astype(self.wide)
        return np.asarray(array.get() if name == "cupy" else array).astype(self.wide)

    def left_alone(self):
        for array, copy in self.given:
            assert array.tobytes() == copy.tobytes(), "a call wrote to its argument"

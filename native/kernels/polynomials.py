"""Computes native/kernels/polynomials.h: minimax polynomials for the activation functions.

Run it with mpmath installed:  python native/kernels/polynomials.py > native/kernels/polynomials.h

Each polynomial p minimises the largest relative error of its function, by the Remez exchange algorithm.
Leading terms that are exact (x in expm1) stay outside p, so that nothing cancels near zero.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp

mp.mp.prec = 200

Real = mp.mpf
Function = Callable[[Real], Real]


def remez(target: Function, weight: Function, low: Real, high: Real, degree: int) -> tuple[list[Real], Real]:
    """Return the p of a degree that minimises max |p - target| * weight on [low, high], and that maximum."""
    count = degree + 2
    nodes = [
        (low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (count - 1 - i) / (count - 1))
        for i in range(count)
    ]
    coefficients: list[Real] = []
    worst = mp.mpf(0)
    for _ in range(30):
        rows = [[x**j for j in range(degree + 1)] + [(-1) ** i / weight(x)] for i, x in enumerate(nodes)]
        solution = mp.lu_solve(mp.matrix(rows), mp.matrix([target(x) for x in nodes]))
        coefficients, level = list(solution)[:-1], abs(solution[degree + 1])

        grid = [low + (high - low) * i / (40 * count) for i in range(40 * count + 1)]
        values = [(mp.polyval(coefficients[::-1], x) - target(x)) * weight(x) for x in grid]
        peaks = [
            i
            for i in range(len(grid))
            if all(
                values[i] * mp.sign(values[i]) >= values[j] * mp.sign(values[i])
                for j in (max(i - 1, 0), min(i + 1, len(grid) - 1))
            )
        ]
        chosen: list[int] = []
        for i in peaks:  # the highest peak of each run of one sign
            if chosen and mp.sign(values[i]) == mp.sign(values[chosen[-1]]):
                if abs(values[i]) > abs(values[chosen[-1]]):
                    chosen[-1] = i
            else:
                chosen.append(i)
        while len(chosen) > count:
            chosen.pop(0 if abs(values[chosen[0]]) < abs(values[chosen[-1]]) else -1)
        worst = max(abs(value) for value in values)
        if len(chosen) < count:
            break
        nodes = [grid[i] for i in chosen]
        if worst - level < level * mp.mpf("1e-3"):
            break
    return coefficients, worst


def near_zero(function: Function, series: Callable[[Real], Real]) -> Function:
    """Return `function`, with its series where it would cancel."""
    return lambda x: series(x) if abs(x) < mp.mpf("1e-12") else function(x)


TINY = mp.mpf("1e-8")
HALF_LN2 = mp.log(2) / 2 + mp.mpf("1e-3")

# name -> (comment, target, weight, low, high, degree in float, degree in double)
FUNCTIONS = {
    # expm1(x) = x + x^2 p(x)
    "Expm1": (
        "expm1(x) = x + x^2 p(x), |x| <= ln(2)/2",
        near_zero(lambda x: (mp.expm1(x) - x) / x**2, lambda x: mp.mpf(1) / 2 + x / 6 + x**2 / 24),
        lambda x: x**2 / abs(mp.expm1(x)) if abs(x) > TINY else TINY,
        -HALF_LN2,
        HALF_LN2,
        4,
        9,
    ),
    # log1p(e) = 2 s + s^3 p(s^2), s = e / (2 + e)
    "Log1p": (
        "log1p(e) = 2 s + s^3 p(s^2), s = e/(2 + e), 0 <= e <= 1; p in s^2",
        near_zero(
            lambda u: (2 * mp.atanh(mp.sqrt(u)) - 2 * mp.sqrt(u)) / mp.sqrt(u) ** 3,
            lambda u: mp.mpf(2) / 3 + 2 * u / 5,
        ),
        lambda u: mp.sqrt(u) ** 3 / (2 * mp.atanh(mp.sqrt(u))) if u > TINY else TINY,
        mp.mpf(0),
        mp.mpf(1) / 9,
        4,
        10,
    ),
}


def main() -> None:
    """Print the header."""
    by = "native/kernels/polynomials.py"
    print(f"// Made by {by}; lowest power first. The error is relative, before rounding.")
    guard = "ONEGRU_NATIVE_KERNELS_POLYNOMIALS_H_"
    print(f"\n#ifndef {guard}\n#define {guard}\n\nnamespace onegru {{\n")
    for name, (comment, target, weight, low, high, float_degree, double_degree) in FUNCTIONS.items():
        print(f"// {comment}")
        for kind, suffix, degree in (("float", "f", float_degree), ("double", "", double_degree)):
            coefficients, worst = remez(target, weight, low, high, degree)
            digits = 9 if kind == "float" else 17
            listed = ",\n    ".join(mp.nstr(c, digits, strip_zeros=False) + suffix for c in coefficients)
            label = f"k{name}{'32' if kind == 'float' else '64'}"
            print(f"// error {mp.nstr(worst, 2)}\ninline constexpr {kind} {label}[] = {{\n    {listed}}};")
        print()
    print(f"}}  // namespace onegru\n\n#endif  // {guard}")


if __name__ == "__main__":
    main()

// Exponential moving average, debiased: its first value is the first value, not a pull towards zero.

/**
 * Of `values` (null where there is none), with `weight` in [0, 1) of the past. Divides by 1 - weight^n, as Adam's
 * moments are (arXiv 1412.6980), so that early values are averages of what there is.
 */
export function smoothed(values, weight) {
  if (!(weight > 0)) return values;
  let mean = 0,
    bias = 1;
  return values.map((value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return null;
    mean = weight * mean + (1 - weight) * value;
    bias *= weight;
    return mean / (1 - bias);
  });
}

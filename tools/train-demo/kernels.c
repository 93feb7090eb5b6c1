/* Element-wise parts of the network, forward and backward, each in one pass over its data. f32, one thread.
 * `fused.py` compiles and calls this file and has the same functions in PyTorch; `verify.py` compares them.
 * Rows are contiguous unless a stride is given. */
#include <math.h>
#include <string.h>

static inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* y = x * r * gain with r = 1 / sqrt(scale * sum(x^2) + eps), for n rows of d. */
void norm_forward(const float *x, const float *gain, float *y, float *r, long n, long d, float scale, float eps) {
    for (long i = 0; i < n; i++, x += d, y += d) {
        float sum = 0;
        for (long j = 0; j < d; j++) sum += x[j] * x[j];
        float f = 1.0f / sqrtf(scale * sum + eps);
        r[i] = f;
        for (long j = 0; j < d; j++) y[j] = x[j] * f * gain[j];
    }
}

/* dgain is added to. */
void norm_backward(const float *x, const float *gain, const float *r, const float *dy, float *dx, float *dgain, long n,
                   long d, float scale) {
    for (long i = 0; i < n; i++, x += d, dy += d, dx += d) {
        float f = r[i], dot = 0;
        for (long j = 0; j < d; j++) {
            dot += dy[j] * gain[j] * x[j];
            dgain[j] += dy[j] * x[j] * f;
        }
        float back = dot * f * f * f * scale;
        for (long j = 0; j < d; j++) dx[j] = dy[j] * gain[j] * f - x[j] * back;
    }
}

/* y = norm(x) * silu(z), rows of d; z has rows of zs. */
void gated_norm_forward(const float *x, const float *gain, const float *z, float *y, float *r, long rows, long per_row,
                        long d, long zs, float eps) {
    for (long i = 0; i < rows; i++)
        for (long h = 0; h < per_row; h++, x += d, y += d, r++) {
            const float *g = z + i * zs + h * d;
            norm_forward(x, gain, y, r, 1, d, 1.0f / d, eps);
            for (long j = 0; j < d; j++) y[j] *= g[j] * sigmoid(g[j]);
        }
}

/* dgain is added to; dz has contiguous rows of per_row * d. d is at most 256. */
void gated_norm_backward(const float *x, const float *gain, const float *z, const float *r, const float *dy, float *dx,
                         float *dgain, float *dz, long rows, long per_row, long d, long zs) {
    float inner[256];
    for (long i = 0; i < rows; i++)
        for (long h = 0; h < per_row; h++, x += d, dy += d, dx += d, dz += d, r++) {
            const float *g = z + i * zs + h * d;
            for (long j = 0; j < d; j++) {
                float s = sigmoid(g[j]), silu = g[j] * s;
                inner[j] = dy[j] * silu;
                dz[j] = dy[j] * x[j] * *r * gain[j] * (s + silu * (1 - s));
            }
            norm_backward(x, gain, r, inner, dx, dgain, 1, d, 1.0f / d);
        }
}

/* y = silu(a) * b for rows [a, b] of 2 * d. */
void swiglu_forward(const float *x, float *y, long n, long d) {
    for (long i = 0; i < n; i++, x += 2 * d, y += d)
        for (long j = 0; j < d; j++) y[j] = x[j] * sigmoid(x[j]) * x[d + j];
}

void swiglu_backward(const float *x, const float *dy, float *dx, long n, long d) {
    for (long i = 0; i < n; i++, x += 2 * d, dx += 2 * d, dy += d)
        for (long j = 0; j < d; j++) {
            float s = sigmoid(x[j]), silu = x[j] * s;
            dx[j] = dy[j] * x[d + j] * (s + silu * (1 - s));
            dx[d + j] = dy[j] * silu;
        }
}

/* y = silu(convolution of x), 4 taps w [4, d], newest last; batch rows of t tokens; x has token stride xs.
 * c keeps the convolution's result for the way back. */
void conv_forward(const float *x, const float *w, float *y, float *c, long batch, long t, long d, long xs) {
    for (long b = 0; b < batch; b++, x += t * xs)
        for (long i = 0; i < t; i++, y += d, c += d) {
            const float *now = x + i * xs;
            for (long j = 0; j < d; j++) c[j] = now[j] * w[3 * d + j];
            for (long lag = 1; lag < 4 && lag <= i; lag++)
                for (long j = 0; j < d; j++) c[j] += now[j - lag * xs] * w[(3 - lag) * d + j];
            for (long j = 0; j < d; j++) y[j] = c[j] * sigmoid(c[j]);
        }
}

/* dx has contiguous rows of d and dw is added to. Overwrites c with the gradient of the convolution's result. */
void conv_backward(const float *x, const float *w, float *c, const float *dy, float *dx, float *dw, long batch, long t,
                   long d, long xs) {
    for (long i = 0; i < batch * t * d; i++) {
        float s = sigmoid(c[i]);
        c[i] = dy[i] * (s + c[i] * s * (1 - s));
    }
    for (long b = 0; b < batch; b++, x += t * xs, dx += t * d, c += t * d)
        for (long i = 0; i < t; i++) {
            const float *now = x + i * xs;
            float *grad = c + i * d, *out = dx + i * d;
            for (long j = 0; j < d; j++) {
                out[j] = grad[j] * w[3 * d + j];
                dw[3 * d + j] += grad[j] * now[j];
            }
            for (long lag = 1; lag < 4 && i + lag < t; lag++)
                for (long j = 0; j < d; j++) out[j] += grad[lag * d + j] * w[(3 - lag) * d + j];
            for (long lag = 1; lag < 4 && lag <= i; lag++)
                for (long j = 0; j < d; j++) dw[(3 - lag) * d + j] += grad[j] * now[j - lag * xs];
        }
}

// Loops of the table (kernels.h) whose arithmetic is not rearranged.
#pragma once

#include "src/run/kernels/kernels.h"

namespace paradyse::kernels {

void rotations(
    const at::Tensor& frequencies,
    double factor,
    const at::Tensor& cosines,
    const at::Tensor& sines);
void softmax(const at::Tensor& scores, const ScoreRows& rows);
void score_gradient(
    const at::Tensor& p,
    const at::Tensor& o,
    const at::Tensor& grad_o,
    const at::Tensor& d,
    const at::Tensor& narrow);
void look_up(
    const at::Tensor& x,
    const at::Tensor& table,
    const at::Tensor& tokens,
    const at::Tensor& rows,
    bool add);
void add_looked_up(
    const at::Tensor& grad_table,
    const at::Tensor& grad_x,
    const at::Tensor& tokens,
    const at::Tensor& rows);
void squared_error(
    const at::Tensor& y,
    const at::Tensor& v,
    double scale,
    const at::Tensor& d,
    const at::Tensor& sums);

}  // namespace paradyse::kernels

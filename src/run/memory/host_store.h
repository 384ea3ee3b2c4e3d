// Where tensors wait that a rank has no room for.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

namespace paradyse {

// A copy of `tensor` in host memory that no accountant counts.  On CPU ranks, whose own memory is
// the host's, it lies in a file in $TMPDIR (or /tmp) that has no name and goes with the tensor: the
// system may write it out.
// Throws std::runtime_error naming the folder when there is no room.
at::Tensor to_host(const at::Tensor& tensor);

// So many zeros there, at least one, for tensors `like` these; `what`: for whoever there is no room
// for.
at::Tensor host_zeros(std::int64_t elements, const at::TensorOptions& like, const char* what);

// Zeros there in the shapes of `likes`, all in one place.
std::vector<at::Tensor> host_zeros(
    const std::vector<at::Tensor>& likes, const at::TensorOptions& like, const char* what);

}  // namespace paradyse

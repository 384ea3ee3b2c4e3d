// Where tensors wait that a rank has no room for.
#pragma once

#include <ATen/ATen.h>

namespace paradyse {

// A copy of `tensor` in host memory that no accountant counts.  On CPU ranks, whose own memory is
// the host's, it lies in a file in $TMPDIR (or /tmp) that has no name and goes with the tensor: the
// system may write it out.
// Throws std::runtime_error naming the folder and `what` it is when there is no room.
at::Tensor to_host(const at::Tensor& tensor, const char* what = "saved tensors");

}  // namespace paradyse

// SPDX-License-Identifier: Apache-2.0
// Which of the oracles knows a layer. Compiled once, since they are long.
#include "support/oracle.h"

#include "support/dense_oracle.h"
#include "support/linear_oracle.h"
#include "support/lines_oracle.h"

namespace scanrnn::test::oracle {

Answer run(const Case& c, const Data& data, bool with_backward, bool as_cuda) {
  if (has_line_options(c.layer)) return LineOracle(c, data).run(with_backward);
  const bool dense = info(c.layer.cell).recurrence == dispatch::Recurrence::dense;
  return dense ? run_dense(c, data, with_backward, as_cuda)
               : run_linear(c, data, with_backward, as_cuda);
}

}  // namespace scanrnn::test::oracle

// Moves words from inputs to the outputs that they name, one a clock for each output.
//
// A register follows each output. Inputs that want the same output take turns; an input whose
// output is held up waits, and the others go on. Words of one input for one output stay in order.

`default_nettype none

module crossbar #(
  parameter int INPUTS = 9,
  parameter int OUTPUTS = 9,
  parameter int WIDTH = 143,
  parameter int OUTPUT_BITS = $clog2(OUTPUTS)
) (
  input  wire  logic                          clk,
  input  wire  logic                          reset,

  input  wire  logic [INPUTS-1:0]             s_valid,
  output logic [INPUTS-1:0]                   s_ready,
  input  wire  logic [INPUTS*OUTPUT_BITS-1:0] s_output,   // where each word goes
  input  wire  logic [INPUTS*WIDTH-1:0]       s_data,

  output logic [OUTPUTS-1:0]                  m_valid,
  input  wire  logic [OUTPUTS-1:0]            m_ready,
  output logic [OUTPUTS*WIDTH-1:0]            m_data
);

  if (OUTPUT_BITS < $clog2(OUTPUTS)) begin : check_output_bits
    $error("crossbar: OUTPUT_BITS can not name OUTPUTS");
  end

  logic [OUTPUTS*INPUTS-1:0] grants;

  for (genvar o = 0; o < OUTPUTS; o++) begin : outputs
    logic [INPUTS-1:0] request;
    logic [INPUTS-1:0] grant;
    logic              is_free;
    logic [WIDTH-1:0]  granted;

    for (genvar i = 0; i < INPUTS; i++) begin : requests
      assign request[i] = s_valid[i] &&
                          s_output[OUTPUT_BITS*i +: OUTPUT_BITS] == OUTPUT_BITS'(o);
    end

    assign is_free = !m_valid[o] || m_ready[o];

    round_robin #(
      .REQUESTS(INPUTS)
    ) turns (
      .clk,
      .reset,
      .request,
      .use_grant(is_free),
      .grant
    );

    assign grants[INPUTS*o +: INPUTS] = is_free ? grant : '0;

    always_comb begin
      granted = '0;
      for (int i = 0; i < INPUTS; i++) begin
        granted = granted | (s_data[WIDTH*i +: WIDTH] & {WIDTH{grant[i]}});
      end
    end

    always_ff @(posedge clk) begin
      if (is_free) begin
        m_valid[o] <= grant != '0;
        m_data[WIDTH*o +: WIDTH] <= granted;
      end
      if (reset) m_valid[o] <= 1'b0;
    end
  end

  always_comb begin
    s_ready = '0;
    for (int o = 0; o < OUTPUTS; o++) s_ready = s_ready | grants[INPUTS*o +: INPUTS];
  end

endmodule

`default_nettype wire

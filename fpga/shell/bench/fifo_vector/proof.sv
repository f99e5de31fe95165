// Words of a FIFO come out in order, none is lost, doubled, or goes to another; words of a burst
// come together; a FIFO takes a word unless it is full; a complete burst comes out without a pause.
//
// A word is the index of its FIFO, and its own number there.

`default_nettype none

module proof #(
  parameter int FIFOS = 2,
  parameter int DEPTH = 4,
  parameter int BURST = 2,
  parameter int INDEX_BITS = $clog2(FIFOS)
) (
  input wire logic                  clk,
  input wire logic                  s_valid,
  input wire logic [INDEX_BITS-1:0] s_index,
  input wire logic                  m_ready
);

  localparam int COUNT_BITS = $clog2(DEPTH) + 1;
  localparam int NUMBER_BITS = COUNT_BITS + 1;
  localparam int WIDTH = INDEX_BITS + NUMBER_BITS;
  localparam int QUEUE = FIFOS * DEPTH / BURST;
  localparam int QUEUE_BITS = $clog2(QUEUE);
  localparam int BURST_BITS = $clog2(BURST);
  typedef logic [NUMBER_BITS-1:0] number_t;

  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  logic                          s_ready;
  logic                          m_valid;
  logic [INDEX_BITS-1:0]         m_index;
  logic [WIDTH-1:0]              m_data;
  logic                          m_is_last;
  logic [FIFOS*NUMBER_BITS-1:0]  in_counts;
  logic [FIFOS*NUMBER_BITS-1:0]  out_counts;

  fifo_vector #(
    .FIFOS(FIFOS), .DEPTH(DEPTH), .BURST(BURST), .WIDTH(WIDTH)
  ) fifos (
    .clk, .reset, .s_valid, .s_ready, .s_index,
    .s_data({s_index, in_counts[NUMBER_BITS*s_index +: NUMBER_BITS]}),
    .m_valid, .m_ready, .m_index, .m_data, .m_is_last
  );

  wire [FIFOS*DEPTH*WIDTH-1:0] memory;        // probe fifos.memory[*]
  wire [FIFOS*COUNT_BITS-1:0] written;        // probe fifos.written[*]
  wire [FIFOS*COUNT_BITS-1:0] taken;          // probe fifos.taken[*]
  wire [BURST_BITS-1:0] position;             // probe fifos.position
  wire get;                                   // probe fifos.get
  wire [QUEUE_BITS:0] queue_level;            // probe fifos.bursts.level
  wire [QUEUE_BITS:0] queue_taken;            // probe fifos.bursts.taken
  wire [QUEUE*INDEX_BITS-1:0] queue;          // probe fifos.bursts.memory[*]

  // Of the burst that comes out: how many words of it did.
  logic [BURST_BITS-1:0] out_position;
  logic [INDEX_BITS-1:0] out_index;

  always_ff @(posedge clk) begin
    if (s_valid && s_ready) in_counts[NUMBER_BITS*s_index +: NUMBER_BITS] <=
                              in_counts[NUMBER_BITS*s_index +: NUMBER_BITS] + 1'b1;
    if (m_valid && m_ready) begin
      out_counts[NUMBER_BITS*m_index +: NUMBER_BITS] <=
        out_counts[NUMBER_BITS*m_index +: NUMBER_BITS] + 1'b1;
      out_position <= out_position + 1'b1;
      out_index <= m_index;
    end
    if (reset) begin
      in_counts <= '0;
      out_counts <= '0;
      out_position <= '0;
    end
  end

  wire [INDEX_BITS-1:0] front = queue[INDEX_BITS * (queue_taken % QUEUE) +: INDEX_BITS];

  for (genvar f = 0; f < FIFOS; f++) begin : each
    wire [COUNT_BITS-1:0] end_at = written[COUNT_BITS*f +: COUNT_BITS];
    wire [COUNT_BITS-1:0] begin_at = taken[COUNT_BITS*f +: COUNT_BITS];
    wire [COUNT_BITS-1:0] level = end_at - begin_at;
    wire number_t in_count = in_counts[NUMBER_BITS*f +: NUMBER_BITS];
    wire number_t out_count = out_counts[NUMBER_BITS*f +: NUMBER_BITS];
    wire is_shown = m_valid && m_index == f;
    logic [7:0] bursts;
    always_comb begin
      bursts = '0;
      for (int i = 0; i < QUEUE; i++) begin
        if (i < queue_level &&
            queue[INDEX_BITS * ((queue_taken + i) % QUEUE) +: INDEX_BITS] == f) bursts = bursts + 1;
      end
      if (started) begin
        assert (level <= DEPTH && number_t'(in_count - out_count) == level + is_shown);
        assert (end_at == in_count % (2 * DEPTH));
        // Complete bursts, the one that has begun included, are those in the queue.
        assert ((level + (queue_level != 0 && front == f ? position : 0)) / BURST == bursts);
        assert (begin_at % BURST == (queue_level != 0 && front == f ? position : 0));
        for (int i = 0; i < DEPTH; i++) begin
          if (i < level)
            assert (memory[WIDTH * (DEPTH * f + (begin_at + i) % DEPTH) +: WIDTH] ==
                    {INDEX_BITS'(f), number_t'(out_count + is_shown + i)});
        end
        if (s_index == f) assert (s_ready == (level != DEPTH));
        if (level >= BURST && (!m_valid || m_ready)) assert (get);
      end
    end
  end

  always_comb begin
    if (started) begin
      a_queue: assert (queue_level <= QUEUE && (queue_level != 0 || position == '0));
      if (m_valid) begin
        a_order: assert (m_data == {m_index, out_counts[NUMBER_BITS*m_index +: NUMBER_BITS]});
        a_last: assert (m_is_last == (out_position == BURST - 1));
        if (out_position != '0) a_together: assert (m_index == out_index);
      end
      a_position: assert (position == BURST_BITS'(out_position + m_valid));
      if (position != '0) a_begun: assert (front == (m_valid ? m_index : out_index));
      // A burst that has begun goes on.
      if (position != '0 && (!m_valid || m_ready)) a_goes_on: assert (get);
    end
  end

endmodule

`default_nettype wire

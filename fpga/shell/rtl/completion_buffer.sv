// Pages in the order in which they were asked for, from a card that answers in any other.
//
// BlueDBM, section 3.1: bursts come out of order and interleaved, so users that want a FIFO have
// completion buffers. Here a ring of page buffers: a command takes the next one, whose number is
// its tag, so there is always a place for what comes. The oldest page streams out as its bursts
// arrive. A page that there is not, or that may not be read, is one word with its status.

`default_nettype none

module completion_buffer #(
  parameter int BUFFERS = 32         // pages; a power of two
) (
  input  wire  logic                                clk,
  input  wire  logic                                reset,

  // Pages that are wanted. One whose status is not DONE needs no command.
  input  wire  logic                                s_valid,
  output logic                                      s_ready,
  input  wire  shell_pkg::command_t                 s_command,
  input  wire  logic [shell_pkg::STATUS_BITS-1:0]   s_status,

  // The splitter. What comes from it is always taken.
  output logic                                      command_valid,
  input  wire  logic                                command_ready,
  output shell_pkg::command_t                       command,
  output logic [shell_pkg::USER_TAG_BITS-1:0]       command_tag,

  input  wire  logic                                read_valid,
  input  wire  logic [shell_pkg::USER_TAG_BITS-1:0] read_tag,
  input  wire  logic [shell_pkg::DATA_BITS-1:0]     read_data,

  input  wire  logic                                ack_valid,
  input  wire  logic [shell_pkg::USER_TAG_BITS-1:0] ack_tag,
  input  wire  logic [shell_pkg::STATUS_BITS-1:0]   ack_status,

  // The pages, PAGE_WORDS words each if the status is DONE.
  output logic                                      m_valid,
  input  wire  logic                                m_ready,
  output logic [shell_pkg::DATA_BITS-1:0]           m_data,
  output logic                                      m_is_last,   // of a page
  output logic [shell_pkg::STATUS_BITS-1:0]         m_status
);

  localparam int INDEX_BITS = $clog2(BUFFERS);
  localparam int USER_TAG_BITS = shell_pkg::USER_TAG_BITS;
  localparam int WORD_BITS = $clog2(shell_pkg::PAGE_WORDS);

  if (BUFFERS < 2 || (BUFFERS & (BUFFERS - 1)) != 0 || INDEX_BITS > USER_TAG_BITS)
  begin : check_buffers
    $error("completion_buffer: BUFFERS is not a power of two of 2 to 2^USER_TAG_BITS");
  end

  typedef logic [INDEX_BITS-1:0] index_t;

  logic [shell_pkg::DATA_BITS-1:0]   memory [BUFFERS << WORD_BITS];
  logic [WORD_BITS:0]                arrived [BUFFERS];    // words of each
  logic [shell_pkg::STATUS_BITS-1:0] status [BUFFERS];
  logic [BUFFERS-1:0]                is_without;           // a page that does not come

  // One bit more than an index: a full ring is not an empty one.
  logic [INDEX_BITS:0]  head;         // the next buffer
  logic [INDEX_BITS:0]  tail;         // the oldest page
  logic [WORD_BITS-1:0] position;     // of its next word
  logic                 has_buffer;
  logic                 is_there;
  logic                 go;
  logic                 is_last;
  index_t               next;
  index_t               oldest;
  index_t               read_index;
  index_t               ack_index;

  assign next = head[INDEX_BITS-1:0];
  assign oldest = tail[INDEX_BITS-1:0];
  assign read_index = read_tag[INDEX_BITS-1:0];
  assign ack_index = ack_tag[INDEX_BITS-1:0];

  assign has_buffer = (INDEX_BITS + 1)'(head - tail) != (INDEX_BITS + 1)'(BUFFERS);
  assign command_valid = s_valid && has_buffer && s_status == shell_pkg::DONE;
  assign command = s_command;
  assign command_tag = USER_TAG_BITS'(next);
  assign s_ready = has_buffer && (command_ready || s_status != shell_pkg::DONE);

  assign is_there = head != tail &&
                    (is_without[oldest] || {1'b0, position} < arrived[oldest]);
  assign is_last = is_without[oldest] || position == '1;
  assign go = !m_valid || m_ready;

  always_ff @(posedge clk) begin
    if (read_valid) begin
      memory[{read_index, arrived[read_index][WORD_BITS-1:0]}] <= read_data;
      arrived[read_index] <= arrived[read_index] + 1'b1;
    end
    if (ack_valid) begin
      is_without[ack_index] <= 1'b1;
      status[ack_index] <= ack_status;
    end
    if (s_valid && s_ready) begin
      head <= head + 1'b1;
      arrived[next] <= '0;
      is_without[next] <= s_status != shell_pkg::DONE;
      status[next] <= s_status;
    end
    if (go) begin
      m_valid <= is_there;
      m_data <= memory[{oldest, position}];
      m_is_last <= is_last;
      m_status <= is_without[oldest] ? status[oldest] : shell_pkg::DONE;
      if (is_there) begin
        position <= is_last ? '0 : position + 1'b1;
        if (is_last) tail <= tail + 1'b1;
      end
    end
    if (reset) begin
      head <= '0;
      tail <= '0;
      position <= '0;
      m_valid <= 1'b0;
    end
  end

endmodule

`default_nettype wire
